-- Tables that were measured elsewhere (`motley profile import`). They stand beside what is measured here and never in
-- its place: a plan uses one only for the device of that name and inventory, and only while it is not measured.
CREATE TABLE imported_profiles (
    device text NOT NULL,
    key text NOT NULL CHECK (key ~ '^[0-9a-f]{64}$'),
    content text,
    digest text,                   -- of the inventory of the device that was measured; null: any other device's
    document json NOT NULL,
    source text NOT NULL,          -- what the document says of where it comes from
    imported_by bigint REFERENCES users,
    imported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (device, key)
);
