-- What a request under an idempotency key was answered with, sealed; '' where that is made anew, or is not known.
ALTER TABLE idempotency ADD COLUMN answer TEXT NOT NULL DEFAULT '';
