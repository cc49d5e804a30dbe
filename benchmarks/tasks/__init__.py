"""Durable tasks beside other engines: what a task costs, how fast it goes on, what it leaves."""
