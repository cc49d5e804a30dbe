"""Operations on the pool: queues, rates, schedules, workers, health."""
