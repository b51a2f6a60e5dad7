"""The parts of every controller: actions, runner and work queue, leader election, configuration, logs, metrics.

The packages of the duties return actions; the assembly gives each runner its decide function. Nothing here knows
volumes or backends: a runner performs whatever its decide function returns, one step at a time, and starts operations
through a function that is passed in.
"""
