-- Delete what an erasure has left of a blob. What was put again meanwhile is in the books, and
-- stays: also for a repetition.
-- KEYS blob        hash
-- KEYS reference   hash
-- KEYS about       hash: =<id> -> size and trace
-- KEYS references  zset: id -> expiry in us
-- ARGV blob_id     of the blob
-- Returns
--   {'OK', deleted}  how many of the two were there, and are not any more

local deleted = 0
if redis.call('HEXISTS', about, '=' .. blob_id) == 0 then
  deleted = redis.call('UNLINK', blob)
end
if not redis.call('ZSCORE', references, blob_id) then
  deleted = deleted + redis.call('UNLINK', reference)
end
return { 'OK', deleted }
