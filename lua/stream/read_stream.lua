-- Read rows of a stream after a place, and what is known of the stream.
-- KEYS info  hash: see create_stream
-- KEYS rows  stream: data; entry <n>-<ms>
-- ARGV after       place; '' for the oldest kept, 'now' for the end
-- ARGV most_rows   int: count
-- ARGV most_bytes  int: no row more once those found have so many
-- ARGV renew       flag: its lifetime begins again
-- Returns
--   {'OK', view, rows}          as stream_view and XRANGE give them
--   {'MISSING'}                 there is no such stream
--   {'DENIED', view}            it was deleted, and its forks are kept
--   {'GAP', reason, place}      trimmed, ahead or rewound; the place from which there are rows
-- @include stream_gap
-- @include stream_keep
-- @include stream_named
-- @include stream_rows
-- @include unless_refused
-- @reading

local stream = stream_named(info)
if not stream then return { 'MISSING' } end
if stream.state == 'deleted' then return { 'DENIED', stream.view } end
if renew and stream.expires == '' then
  unless_refused(function() stream_keep(info, rows, stream.life, '') end, 'PEXPIRE', info, stream.life)
end
local from = after == '' and stream.first or after == 'now' and stream.last or after
local reason = stream_gap(rows, from, stream.first, stream.last)
if reason then return { 'GAP', reason, stream.first } end
return { 'OK', stream.view, stream_rows(rows, from, most_rows, most_bytes) }
