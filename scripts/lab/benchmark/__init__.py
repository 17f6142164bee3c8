"""The benchmark behind ``scripts/bench``: mxhybrid against other ways to exchange the same gradients.

Each module imports only modules below it.

=====================  ===============================================================================
``cli``                arguments of ``scripts/bench``; which runs are made in which order
``exchange``           workloads that exchange gradients and compute nothing
``overhead``           the cost of a step of the store in one process, beside MXNet's own
``training``           the real training run, examples/word_lm.py
``models``             training workloads, which all contenders train, and their losses
``model_steps``        their sizes, batches and first weights, by NumPy alone
``model_training``     a worker of ``models`` by MXNet: hybrid, dist_sync, Horovod
``model_torchrec``     a worker of ``models`` by TorchRec, for recommenders
``model_torch``        a worker of ``models`` by PyTorch
``layers``             training steps with layers split by several plans
``layers_training``    a worker of ``layers``
``layers_formula``     the times of ``layers`` by Gholami's formulas
``pipeline``           schedules of a pipeline, and its stages alone
``pipeline_training``  a worker of ``pipeline``
``split_training``     the steps of the workers of ``layers``, ``pipeline`` and ``plans``
``plans``              training steps that were predicted, by several plans
``plan_training``      a worker of ``plans``; the planner's predictions
``plan_cases``         networks and plans of ``plans``
``starts``             the time until the workers of a job have joined, beside Horovod alone
``start_worker``       a worker of ``starts``
``tables``             dynamic tables: start, memory, steps, checkpoints, PyTorch
``table_training``     a worker of ``tables``
``table_torch``        PyTorch's process of ``tables``
``table_steps``        row ids and timing of ``table_training`` and ``table_torch``
``transformers``       BERT and a GPT, which some benchmarks train
``asking``             answers of programs that need MXNet: the benchmark's own process does not import it
``interruption``       signals that end the benchmark and its jobs; workers that end with it
``launching``          processes and environment variables that each contender's job needs
``rendezvous``         the address at which Horovod's workers find each other
``contender_job``      starts the processes of a job, waits for them with a deadline, ends them
``limits``             hosts with processors of their own, for predictions
``testbeds``           where a job's processes run: emulated hosts, or plain processes on loopback
``worker``             main program of a worker: warm up, step, measure, verify
``contenders``         the exchanges by MXNet: hybrid, dist_sync, Horovod dense, Horovod allgather
``sharded``            the exchange by PyTorch: row-wise sharded tables, alltoall
``measuring``          bytes of an interface, CPU seconds of a job
``gradients``          the gradients, and the sums that every contender must compute
``report``             from readings to the table and the JSON file
``plot``               from readings to the picture (matplotlib)
``training_figures``   throughput and bytes over hosts, and loss over time, of ``models``
``bounds``             bytes that no such exchange can avoid
``workloads``          tensors and access patterns
``shapes``             layers of the image models
=====================  ===============================================================================
"""
