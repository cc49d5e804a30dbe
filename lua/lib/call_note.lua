-- Note what a call answers, so that the same call repeated does nothing twice. A repetition comes
-- within its caller's deadline; ten minutes are longer than that.
local function call_note(note, write, answer)
  redis.call('SET', note, write .. ' ' .. answer, 'PX', 600000)
end
