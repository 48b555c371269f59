-- Digests of images that were replaced or deleted. Their files are removed when
-- no image and no plan of an open run needs them. All other files in the image
-- directory stay: they are not this inventory's.
CREATE TABLE image_unused (
    sha256 TEXT PRIMARY KEY
) STRICT;
