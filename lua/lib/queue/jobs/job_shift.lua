-- Return by how many ms a job that is due has to move to the place of its priority. Return also its key and place, if
-- it has a key. 0 for a job that is not there, or is put off. That is a whole number of points of priority, a minute
-- each: jobs of one millisecond keep their order. An earlier version of the library does not say since when a job waits:
-- `since` is for such a job, nil to leave it alone.
-- @include job_since
local function job_shift(keys, id, payload, earlier_ms, since, now)
  local owner = redis.call('HGET', keys.owners, id)
  local place = owner and string.match(owner, '%z([^%z]+)$') or redis.call('ZSCORE', keys.queue, id)
  place = tonumber(place or nil)
  if not place or place > now then return 0 end
  local text = job_text(payload)
  since = tonumber(string.match(text, '^.-"a":%[{"since":(%d+),') or nil) or text ~= '' and since
  local shift = since and math.floor((since - earlier_ms - place) / 60000 + 0.5) * 60000 or 0
  -- The clock was set back: what is due stays so.
  if place + shift > now then return 0 end
  return shift, owner
end
