"""horovodrun, started by the path of this file, which saves about a second.

horovodrun asks whether Horovod was built with Gloo, for which it imports MXNet: workers would say so, too.  It starts a
process for each worker, in which multiprocessing imports the main file again: this one, and not the whole launcher.
"""
if __name__ == '__main__':
    from horovod.runner import launch

    launch.gloo_built = lambda verbose=False: True
    launch.run_commandline()
