-- Create a stream, or return the one that has its path. A repetition finds the stream of its own id.
-- KEYS info  hash: id, state, type, life, expires, closed, closer, first, last, bytes, seq, origin, forks,
--            about, creator, producers, and of each producer p:<id> -> epoch and number
-- KEYS rows  stream: data; entry <n>-<ms>
-- ARGV stream_id     of this stream, and of no other at its path
-- ARGV content_type  that its rows must have
-- ARGV life          lifetime after a use in ms; '' for one that ends at a moment
-- ARGV expires       that moment in ms; '' for none
-- ARGV closed        flag: nothing is ever appended
-- ARGV about         what its creator has said of it
-- ARGV creator       who has created it, and its path; '' for nobody
-- ARGV origin        what it is a fork of; '' for nothing
-- ARGV first         place of the row before its first
-- ARGV hold_ms       int: a fork's lifetime until it is copied; 0 for no fork
-- ARGV data          of its first row; '' for none
-- Returns
--   {'OK', view}    created, as stream_view gives it
--   {'HELD', view}  there is one already
-- @include now_text
-- @include stream_keep
-- @include stream_put
-- @include stream_view
-- @lasting

local view = stream_view(info)
if view[1] == stream_id then return { 'OK', view } end
if view[1] then return { 'HELD', view } end
-- What an earlier stream left behind, if its two keys did not expire in one moment.
redis.call('DEL', rows)
local last, copying = first, hold_ms > 0
if data ~= '' then last = stream_put(rows, last, now_text(), data) end
redis.call(
  'HSET', info, 'id', stream_id, 'state', copying and 'copying' or '', 'type', content_type, 'life', life, 'expires', expires,
  'closed', closed and '1' or '', 'closer', '', 'first', first, 'last', last, 'bytes', #data, 'seq', '',
  'origin', origin, 'forks', '', 'about', about, 'creator', creator, 'producers', 0
)
view = stream_view(info)
if copying then stream_keep(info, rows, hold_ms, '') else stream_keep(info, rows, life, expires) end
return { 'OK', view }
