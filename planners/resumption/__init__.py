"""Plans what is left of an iteration in which workers were lost, so that nothing finished is done again."""
