-- Write what the index knows of a task, and list it there. `was` is what it knew. A new task pays for
-- the removal of what has expired; the index lives for 400 days after it,
-- and after the end of a task that is held for the archive.
-- @include index_forget
local function index_put(index, about, expiry, id, was, doc, now, ttl_ms)
  local members, gone, stays = index_members(id, doc), {}, {}
  for i = 2, #members, 2 do stays[members[i]] = true end
  for _, name in ipairs(was and index_names(id, was) or {}) do
    if not stays[name] then gone[#gone + 1] = name end
  end
  -- Added before the others are removed: an index that is empty in between loses its lifetime.
  redis.call('ZADD', index, unpack(members))
  if #gone > 0 then redis.call('ZREM', index, unpack(gone)) end
  redis.call('HSET', about, id, cmsgpack.pack(doc))
  redis.call('ZADD', expiry, string.format('%.0f', now + ttl_ms), id)
  if was and ttl_ms < 34560000000 then return end
  local over = redis.call('ZRANGEBYSCORE', expiry, '-inf', string.format('%.0f', now), 'LIMIT', 0, 4)
  for _, expired in ipairs(over) do index_forget(index, about, expiry, expired) end
  for _, key in ipairs({ index, about, expiry }) do redis.call('PEXPIRE', key, 34560000000) end
end
