"""From a model's profile to a picture: python docs/example_library.py."""

import rtk

profile = rtk.profile_analytic("gpt3-6.7b", gpu="a100-sxm", microbatch_size=1)
healthy = rtk.plan_pipeline(profile, pp=4, dp=4, microbatches=8, schedule="zero-bubble")
plan = rtk.plan_slipstream(profile, pp=4, dp=4, microbatches=8, failed=["1/2"])
assert rtk.verify(plan) == []
for name, one in {"healthy": healthy, "without 1/2": plan}.items():
    print(f"{name}: an iteration takes {rtk.simulate(one).iteration_time_s:.3f} s")
slow = rtk.simulate(plan, slow={"0/1": 1.5}, link_delay={0: 0.02})
print(f"and with a slow worker and slow links: {slow.iteration_time_s:.3f} s")
rtk.write("plan.json", plan)
rtk.draw([plan, slow], "plan.svg")
