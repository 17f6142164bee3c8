"""The benchmark behind ``scripts/bench``: mxhybrid against other ways to exchange the same gradients.

Each module imports only modules below it.

=================  ===================================================================================
``cli``            arguments of ``scripts/bench``; what runs in which order
``exchange``       workloads that exchange gradients and compute nothing
``overhead``       the cost of a step of the store in one process, beside MXNet's own
``training``       the real training run, examples/word_lm.py
``layers``         training steps with layers split by several plans
``layers_training``  one worker of those
``layers_formula`` what Gholami's formulas say of one of those
``pipeline``       schedules of a pipeline, and its stages alone
``pipeline_training``  one worker of those
``plans``          training steps that were predicted, by several plans
``plan_training``  a worker of those; the planner's predictions
``plan_cases``     networks and plans of those
``tables``         dynamic tables: start, memory, steps, checkpoints, PyTorch
``table_training`` one worker of those
``table_torch``    PyTorch's process of those
``table_steps``    ids and timing of both
``transformers``   BERT and a GPT, which some benchmarks train
``asking``         what programs say that need MXNet, which the benchmark's own process does without
``interruption``   signals that end the benchmark, and with it its jobs
``launching``      which processes and variables each contender's job needs
``rendezvous``     where Horovod's workers find each other
``contender_job``  starts the processes of a job, waits for them with a deadline, ends them
``limits``         hosts with processors of their own, for predictions
``places``         where a job's processes run: emulated hosts, or plain processes on loopback
``worker``         main program of a worker: warm up, step, measure, verify
``contenders``     the exchanges by MXNet: hybrid, dist_sync, Horovod dense, Horovod allgather
``sharded``        the exchange by PyTorch: row-wise sharded tables, alltoall
``measuring``      bytes of an interface, CPU seconds of a job
``gradients``      the gradients, and what every contender must have summed
``report``         from readings to the table and the JSON file
``plot``           from readings to the picture (matplotlib)
``bounds``         bytes that no such exchange can avoid
``workloads``      tensors and access patterns
``shapes``         layers of the image models
=================  ===================================================================================
"""
