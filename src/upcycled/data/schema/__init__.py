"""What the columns of a table mean, said once for all sites: kinds, their numbers, drafts and problems."""
