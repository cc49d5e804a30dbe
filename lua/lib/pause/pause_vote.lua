-- Judge a vote on a pause that names who decides it. `use` has actor, vote (JSON) and approves. Returns
-- the reply to a vote that was given before or is refused, or nil; whether this vote decides; and its
-- number. An approval decides if it is the last one needed. So does a rejection, or if it leaves too few
-- seats.
-- @include pause_count
local function pause_vote(key, use)
  local held = redis.call('HMGET', key, 'seat:' .. use.actor, 'vote:' .. use.actor, 'approvals', 'rejections')
  local seats, needed, limit = pause_count(key), tonumber(held[3]), tonumber(held[4])
  if held[2] and held[2] == use.vote then return { 'COUNTED', seats.approved, seats.rejected }, false end
  if held[1] ~= 'open' then return { 'REFUSED', held[1] or '' }, false end
  local number = seats.approved + seats.rejected + 1
  if use.approves then return nil, seats.approved + 1 >= needed, number end
  return nil, seats.rejected + 1 == limit or seats.approved + seats.open - 1 < needed, number
end
