-- The identity provider whose people are taken, and what they are: one row or none.
CREATE TABLE identity (
    declared TEXT NOT NULL
);
