-- Machines that go in good order.

-- When jobs are to leave the node, as its agent's last hello has it: at once where the agent is ending, some time before the
-- machine is taken away (an allocation's end) otherwise. Null: it stays.
ALTER TABLE nodes ADD COLUMN leaves_at timestamptz;
