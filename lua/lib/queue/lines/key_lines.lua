-- A job's key is the line in which it waits: of a limit key, k:<key>; of a session whose tasks run in turn, 1:<session>;
-- of a schedule's backfills, b:<schedule>. The line of a session may stand in that of a limit key: the key is
-- 1:<session>;k:<key> then. Of such a line only the first job counts in the limit key's line. `heads` has it there: the
-- limit key, the job's place, the session's line. Who finds it asks the line again: it may be another job's by then.

-- The line of a key, and the limit key's that it stands in, if it does.
local function key_lines(key)
  local line, above = string.match(key, '^([^;]*);?(.*)$')
  return line, above ~= '' and above or nil
end

-- What a job's owner says is its key and place. In the list of jobs with keys stands its line, place and id.
local function line_member(owner, id)
  return string.gsub(owner, '^([1kb]:[^%z;]*);[^%z]*', '%1') .. '\0' .. id
end
