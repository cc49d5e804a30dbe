-- The beginning of what is listed under a value of a kind. No value's beginning begins another's, and
-- the order of bytes is that of the values. A value of more than 64 bytes is listed by its digest.
local function index_key(kind, value)
  if #value > 64 then return kind .. '\255' .. redis.sha1hex(value) .. '\0' end
  return kind .. string.gsub(value, '[%z\1]', { ['\0'] = '\1\1', ['\1'] = '\1\2' }) .. '\0'
end
