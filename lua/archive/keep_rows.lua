-- Hold a log until it is archived, or let go of it. A repetition does the same.
-- KEYS rows      stream of the log
-- KEYS ids       hash: its ids; '' -> head
-- ARGV least_ms  int: a log that is held for less is held again; 0 lets go of it
-- ARGV hold_ms   int: for how long it is held
-- Returns
--   {'OK', changed}  1 if a lifetime was changed
-- @include now_ms
-- @include log_hold
-- @include log_release

if least_ms == 0 then return { 'OK', log_release(rows, ids, now_ms()) } end
return { 'OK', log_hold(rows, ids, least_ms, hold_ms, now_ms()) }
