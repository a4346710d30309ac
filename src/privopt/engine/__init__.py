"""Maps a query over the units: clips each unit's contribution and sums in float64."""
