-- Do what a reader can do without, as to renew a lifetime; return whether it was done. A server that refuses writes
-- answers reads. It first checks whether the user may call the `...`, a command: a server logs what it refuses.
local function unless_refused(write, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(...) then return false end
  return (pcall(write))
end
