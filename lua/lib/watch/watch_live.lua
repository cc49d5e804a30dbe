-- Let a watch list live for 400 days from now: what nobody has looked at for so long is long gone.
local function watch_live(watch)
  redis.call('PEXPIRE', watch, 34560000000)
end
