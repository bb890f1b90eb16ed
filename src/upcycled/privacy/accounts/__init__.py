"""What data holders have spent over all studies, held to a budget that was fixed before the first."""
