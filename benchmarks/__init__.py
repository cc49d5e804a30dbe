"""What the store costs, beside its peers, in one run: `make bench`.

    __main__    the command: which parts, how long, strict or not
    runner      one run: starts the server and the contenders, lets each part measure
    rates       operations per second, latency, CPU: all contenders in turn
    limit       what the server can do at most with the same script
    latencies   the worker pool: submit, steer, pause
    listening   live subscribers beside one connection each
    reading     polls, hydration, artifacts
    growth      the same operation with more rows, and with more sessions
    report      bars, table, JSON; plots draws

Each contender is a process of its own (`peers/`), driven over its standard streams, so that its
CPU is its own and those whose dependencies conflict run in other environments.
"""
