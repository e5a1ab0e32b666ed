-- Cards that are fenced, or were of late. A card is known by its driver's UUID, or by its place on the node where that says nothing.

CREATE TABLE card (
    node BIGINT NOT NULL,
    card TEXT NOT NULL,
    health TEXT NOT NULL,
    PRIMARY KEY (node, card)
);
