-- Queue a task's run for any worker, once. A repetition finds the job in its place; behind its claim it
-- queues it again, which its task's record makes harmless.
-- KEYS queue           zset: job id -> when it is due, in ms, and earlier by its priority. A fraction says
--   that it waits for longer than that
-- KEYS payload         string: the job in arq's format
-- ARGV job.channel     on which the queue's workers are woken
-- ARGV job.id          the job's id
-- ARGV job.payload     in arq's format
-- ARGV job.life_ms     int: how long it is kept at least
-- ARGV job.earlier_ms  int: what its priority is worth
-- ARGV job.since_ms    int: since when the task waits, if longer than from now; '' otherwise
-- ARGV job.at_ms       int: when it is due; '' for now
-- Returns
--   {'OK', new}  1 if it was not there
-- Emits nothing but a sign of life on the channel
-- @include now_ms
-- @include job_put
-- @each

return { 'OK', job_put(queue, payload, job, now_ms()) }
