"""What stands behind each word after `privopt`; `privopt.cli` reads the arguments."""
