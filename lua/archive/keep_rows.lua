-- Hold a log until it is archived, or let go of it if nothing was appended since it was: what comes later may have been
-- held in the step that appended it. A repetition does the same.
-- KEYS rows      stream of the log
-- KEYS ids       hash: its ids; '' -> head
-- ARGV least_ms  int: a log that is held for less is held again; 0 lets go of it
-- ARGV n         int: then, the number of the last row that is archived
-- ARGV hold_ms   int: for how long it is held
-- Returns
--   {'OK', changed}  1 if a lifetime was changed
-- @include now_ms
-- @include log_head
-- @include log_hold
-- @include log_release

if least_ms > 0 then return { 'OK', log_hold(rows, ids, least_ms, hold_ms, now_ms()) } end
if log_head(redis.call('HGET', ids, '')).last ~= n then return { 'OK', 0 } end
return { 'OK', log_release(rows, ids, now_ms()) }
