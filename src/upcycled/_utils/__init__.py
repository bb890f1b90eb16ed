"""What every room needs and none owns: files that appear whole, a lock, the cache folder, how numbers look."""
