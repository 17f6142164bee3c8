"""The rules of operators, one module for each family; importing this package imports the modules, which registers them.

CONTRIBUTING.md explains how to add the rule of an operator.
"""
import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module('%s.%s' % (__name__, _module.name))
