"""What examples of agent frameworks share: tickets of customers, and a worker that is killed."""
