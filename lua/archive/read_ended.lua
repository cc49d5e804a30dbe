-- Read a terminal task and its journal for the archive, and keep both from expiring before they are archived.
-- A long journal is read by several calls. A repetition reads and keeps the same.
-- KEYS task        hash: the task's record; archive_hold, archived
-- KEYS tasks       zset: task_id -> expiry in us
-- KEYS journal     hash: entry -> JSON
-- ARGV task_id     the task's id
-- ARGV least_ms    int: a lifetime that is shorter is extended
-- ARGV hold_ms     int: how long it is then
-- ARGV whole       flag: also read what there is
-- ARGV portion     int: how many entries are fetched at a time
-- ARGV most_bytes  int: no entry more once they have so many
-- ARGV names..     long: the entries to read, without the record; none to read the record and all entries
-- Returns
--   {'OK', stamp, record, journal, left}  version and write; names and values, in turn; both empty unless whole; the
--     entries that are left for the next call
--   {'COUNTED', stamp, status}  it is archived as it is
--   {'DENIED', status}  it is not terminal
--   {'MISSING'}         no such task
-- @include now_ms
-- @include archive_hold
-- @include archive_place
-- @include journal_portion

local was = redis.call('HMGET', task, 'status', 'version', 'write', 'archived')
if not was[1] then return { 'MISSING' } end
if was[1] ~= 'COMPLETE' and was[1] ~= 'FAILED' and was[1] ~= 'CANCELLED' then return { 'DENIED', was[1] } end
local stamp, now = (was[2] or '0') .. ' ' .. (was[3] or ''), now_ms()
if was[4] == stamp then return { 'COUNTED', stamp, was[1] } end
if archive_hold(task, { journal }, least_ms, hold_ms, now) == 1 then
  archive_place_hold(tasks, task_id, now, hold_ms)
end
if not whole then return { 'OK', stamp, {}, {}, {} } end
local record, entries, at = {}, names, names_from
if not entries[at] then record, entries, at = redis.call('HGETALL', task), redis.call('HKEYS', journal), 1 end
return { 'OK', stamp, record, journal_portion(journal, entries, at, portion, most_bytes) }
