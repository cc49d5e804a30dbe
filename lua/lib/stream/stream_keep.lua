-- Give a stream its lifetime: from now on, or until a moment.
local function stream_keep(info, rows, life, expires)
  if expires ~= '' then
    redis.call('PEXPIREAT', info, expires)
    redis.call('PEXPIREAT', rows, expires)
  else
    redis.call('PEXPIRE', info, life)
    redis.call('PEXPIRE', rows, life)
  end
end
