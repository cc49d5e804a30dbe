-- Return the key in whose line a job waits, and what stands for it there. Nothing for one that is put off, or waits
-- for a version of its handler.
local function job_line(owners, id)
  local owner = redis.call('HGET', owners, id) or ''
  local key = string.match(owner, '^([1kb]:[^%z]*)%z')
  if key then return key, owner .. '\0' .. id end
end
