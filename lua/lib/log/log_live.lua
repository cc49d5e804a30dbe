-- Let a log live until `ends`, and write its head, which says so. The lifetimes first: a full server refuses what may
-- add, and behind them lets the head pass. A log that could not be let go of would stay.
local function log_live(rows, ids, head, ends)
  for _, key in ipairs({ rows, ids }) do redis.call('PEXPIREAT', key, string.format('%.0f', ends)) end
  redis.call('HSET', ids, '', head)
end
