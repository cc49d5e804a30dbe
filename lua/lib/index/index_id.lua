-- A task's id in the index: ten bytes of the digest of its entry on the watch list.
local function index_id(entry)
  local hex = redis.sha1hex(entry)
  local function part(first, last) return tonumber(string.sub(hex, first, last), 16) end
  return struct.pack('>I4I4I2', part(1, 8), part(9, 16), part(17, 20))
end
