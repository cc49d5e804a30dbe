-- Take a task out of the index, if what is known of it is what was read: a repetition finds nothing.
-- KEYS index   zset: a kind and a value, status, time and id, all of score 0
-- KEYS about   hash: id -> what is known of a task
-- KEYS expiry  zset: id -> when it is forgotten, in ms
-- ARGV entry   of the watch list
-- ARGV stamp   what is known of it
-- Returns
--   {'OK'}            it is not listed
--   {'STALE', stamp}  something else is known of it; nothing was removed
-- @include index_id
-- @include index_forget
-- @each
-- @lasting

local id = index_id(entry)
local doc = index_doc(about, id)
if doc and index_stamp(doc) ~= stamp then return { 'STALE', index_stamp(doc) } end
index_forget(index, about, expiry, id)
return { 'OK' }
