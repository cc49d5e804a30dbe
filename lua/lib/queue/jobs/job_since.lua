-- At the head of what a job's payload says stands since when it waits, in ms. A job that is due has its place at that
-- time, earlier by what its priority is worth. So the priority is enough to find the place, and a move may be repeated.

-- Read a job's payload; '' for what is none.
local function job_text(payload)
  local text = redis.pcall('GET', payload)
  return type(text) == 'string' and text or ''
end

-- Write into a payload since when its job waits. One that runs no task stays as it is.
local function job_stamp(text, since)
  local head, said = string.match(text, '^(.-"a":%[{)(.*)$')
  if not head then return text end
  return head .. string.format('"since":%.0f,', since) .. string.gsub(said, '^"since":%d+,', '')
end

-- Do so for a job whose place is another than it was.
local function job_waits(payload, since)
  local text = job_text(payload)
  if text ~= '' then redis.call('SET', payload, job_stamp(text, since), 'XX', 'KEEPTTL') end
end
