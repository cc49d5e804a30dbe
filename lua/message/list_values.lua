-- List the values that a task has published.
-- KEYS journal  hash: value:<key> -> JSON
-- Returns
--   {'OK', values}  entries and their rows of JSON, in turn: ms, epoch, value

local entries, values = {}, {}
for _, name in ipairs(redis.call('HKEYS', journal)) do
  if string.sub(name, 1, 6) == 'value:' then entries[#entries + 1] = name end
end
if #entries == 0 then return { 'OK', values } end
for i, value in ipairs(redis.call('HMGET', journal, unpack(entries))) do
  values[#values + 1] = entries[i]
  values[#values + 1] = value
end
return { 'OK', values }
