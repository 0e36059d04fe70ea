"""What the steps share: who visits, what is loaded, jobs, shipped sets and links."""
