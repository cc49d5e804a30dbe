-- Return the line in which a job waits, its place, and what its owner says. Nothing for one that is put off, or waits
-- for a version of its handler.
local function job_line(owners, id)
  local owner = redis.call('HGET', owners, id) or ''
  local line, place = string.match(owner, '^([1kb]:[^;%z]*)[^%z]*%z([^%z]+)$')
  if line then return line, place, owner end
end
