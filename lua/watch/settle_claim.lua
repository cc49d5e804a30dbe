-- Put off or take out the entries that a claim has inspected. Entries that were put again meanwhile stay,
-- and since when they wait. A repetition finds the claim's mark gone.
-- KEYS watch      zset: entry -> when, in ms
-- KEYS clock      string: when the list was last written, in ms
-- KEYS since      zset: entry -> since when it waits; another key for a list without it
-- ARGV dated      flag: with since
-- ARGV mark       the time that the claim gave its entries
-- ARGV entries..  entry and delay_ms in turn, which may have a fraction; without a delay the entry
--   is taken out
-- Returns
--   {'OK', settled}  how many were still the claim's
-- @include now_ms
-- @include watch_clock
-- @include watch_live

local now, settled = now_ms(), 0
-- First: behind it a full server lets the rest pass. A list that is emptied has none.
watch_live(watch)
watch_clock(watch, clock, now)
for i = 1, #entries, 2 do
  local entry, delay_ms = entries[i], tonumber(entries[i + 1])
  if tonumber(redis.call('ZSCORE', watch, entry) or -1) == tonumber(mark) then
    settled = settled + 1
    if delay_ms then
      redis.call('ZADD', watch, string.format('%.2f', now + delay_ms), entry)
    else
      redis.call('ZREM', watch, entry)
      if dated then redis.call('ZREM', since, entry) end
    end
  end
end
return { 'OK', settled }
