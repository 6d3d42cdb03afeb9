#!/bin/bash
#SBATCH --job-name=NORA_test_MNIST
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=12000
#SBATCH --gres=gpu:1
### #SBATCH --mem-per-gpu=11000
#SBATCH -o /home/%u/%x-%j-on-%N.out
#SBATCH -e /home/%u/%x-%j-on-%N.err
#SBATCH --mail-type=ALL

#Timelimit format: "hours:minutes:seconds" -- max is 24h
#SBATCH --time=00:15:00

#Resubmit (provided by pytorch lightning)
#SBATCH --signal=SIGUSR1@90

echo "Your job is running on" $(hostname)
python3 mnist_model.py
