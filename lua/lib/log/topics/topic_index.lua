-- The index of a topic: the numbers of its rows, as fields of the log's ids. A row's id is UTF-8 and has neither of the
-- first bytes. The newest numbers stand under byte FF and the topic: '<last> <oldest place> <place> <block>'. Full
-- blocks stand under byte FE, their place and the topic. A block is its first number, and the distance of each
-- further one from the one before. It is short, so that the ids of a few rows stay one compact block of the server.
local function topic_field(topic) return '\255' .. topic end
local function topic_block(topic, place) return string.format('\254%.0f ', place) .. topic end

-- Add a number, as text, to an index as it stood, nil for none. Returns the index, and the full block with its place if
-- that has to be kept too.
local function topic_with(text, n)
  if not text then return n .. ' 0 0 ' .. n end
  local last, oldest, place, block = string.match(text, '^(%d+) (%d+) (%d+) (.+)$')
  if #block < 40 then return string.format('%s %s %s %s %.0f', n, oldest, place, block, n - last) end
  return string.format('%s %s %.0f %s', n, oldest, place + 1, n), block, place
end
