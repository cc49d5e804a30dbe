-- Have a session's steering live as long as a worker's task that is not terminal: its next run, which may come after
-- months, reads what it was sent. No row is too old until then. A repetition finds it held.
-- KEYS rows      stream of the log
-- KEYS ids       hash: its ids; '' -> head
-- KEYS task      hash: job, finished
-- ARGV spare_ms  int: how much longer it is held, for a run that ends later than it is held
-- Returns
--   {'OK', changed}  1 if a lifetime was changed
-- @include now_ms
-- @include log_hold

local was, ends, now = redis.call('HMGET', task, 'job', 'finished'), redis.call('PEXPIRETIME', task), now_ms()
-- A host's task is the host's: nothing says here when it ends.
if not was[1] or was[2] == '1' or ends <= now then return { 'OK', 0 } end
return { 'OK', log_hold(rows, ids, ends - now, ends - now + spare_ms, now) }
