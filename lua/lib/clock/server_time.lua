-- The server's clock, the only one that decides anything: seconds, and the microseconds beyond, as
-- text. Read once, since a script is one moment.
local asked
local function server_time()
  asked = asked or redis.call('TIME')
  return asked[1], asked[2]
end
