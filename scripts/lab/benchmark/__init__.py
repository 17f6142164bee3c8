"""The benchmark behind ``scripts/bench``: mxhybrid against other ways to exchange the same gradients.

`cli` reads the arguments and runs the contenders of a workload in turn.  The benchmark's own process imports no MXNet:
the work is done in jobs, and in programs that `asking` starts.

====================  ==================================  ===================================================
workload              the benchmark's process             workers of jobs, and programs that need MXNet
====================  ==================================  ===================================================
exchanges             `exchange`, `links`                 `worker`, `contenders`, `sharded` (PyTorch)
``train_*``           `models`, `training_figures`        `model_training`, `model_torch`, `model_torchrec`
``word_lm``           `training`                          ``examples/word_lm.py``
``overhead``          `overhead`, which trains itself
``layers_*``          `layers`                            `layers_training`, `layers_formula`
``pipeline``          `pipeline`                          `pipeline_training`
``plans``             `plans`                             `plan_training`, `plan_cases`
``tables``            `tables`                            `table_training`, `table_torch`, `table_steps`
``start``             `starts`                            `start_worker`
``recovery``          `recovery`                          `recovery_worker`
several               `comparison`, `report`, `plot`,     `split_training`, `transformers`, `measuring`,
                      `launching`, `contender_job`,       `rendezvous`, `model_steps`, `workloads`, `shapes`,
                      `testbeds`, `asking`                `gradients`, `bounds`, `interruption`
====================  ==================================  ===================================================
"""
